"""Patients that end early, with an exception or without one."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="raw-ids",
        file="raw_ids",
        story="a one-hot of customers' raw numbers",
        expect="out-of-memory",
        line="F.one_hot(customers)",
    ),
    Patient(
        name="other-image",
        file="crashes",
        build="shape",
        story="a head for another size of image",
        expect="shape-mismatch",
        line="self.head(h.flatten(1))",
    ),
    Patient(
        name="meta-gain",
        file="crashes",
        build="meta",
        story="a parameter left without memory on the meta device",
        expect="device-mismatch",
        line="self.gain",
    ),
    Patient(
        name="numpy-doubles",
        file="crashes",
        build="dtype",
        story="inputs in float64, as NumPy makes them",
        expect="dtype-mismatch",
        line="self.conv(x)",
    ),
    Patient(
        name="broken-recording",
        file="recordings",
        build="worker",
        story="a file that kills the loader's worker",
        expect="loader-worker-died",
        line="os.kill(os.getpid(), signal.SIGKILL)",
        dies=True,
    ),
    Patient(
        name="other-gpu",
        file="checkpoints",
        build="device",
        story="a checkpoint that was written by a GPU that is not here",
        expect="checkpoint-device",
        line="torch.load(written_on(device)",
    ),
    Patient(
        name="missing-key",
        file="checkpoints",
        build="key",
        story="a checkpoint under another key",
        expect="user-exception",
        line="checkpoint[key].items()",
    ),
    Patient(
        name="module-prefix",
        file="checkpoints",
        build="names",
        story="a checkpoint of the DDP wrapper, loaded without strict",
        expect="unloaded-checkpoint",
        line="load_state_dict(state, strict=False)",
    ),
    Patient(
        name="null-pointer",
        file="sudden_ends",
        build="pointer",
        story="a helper in C that reads a null pointer",
        expect="process-died",
        line="ctypes.string_at(0)",
        dies=True,
        sure=0.5,
    ),
    Patient(
        name="held-lock",
        file="sudden_ends",
        build="lock",
        story="a step that waits for a lock it holds",
        expect="hung-step",
        line="LOCK.acquire()",
        options={"timeout": 2.0},
        dies=True,
        sure=0.5,
    ),
)
