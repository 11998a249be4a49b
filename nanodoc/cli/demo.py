"""`nanodoc demo [NAME]`: small sick training runs with known causes."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any

import typer

from nanodoc.cli.common import deliver, examined, payload_on_stdout
from nanodoc.cli.options import configured, given_of, settings_of
from nanodoc.clinic.catalogue import PATIENTS, find_patient
from nanodoc.errors import UsageError
from nanodoc.pipeline.after_run import with_joined_reasons
from nanodoc.supervise.job import Job


@configured("demo")
def demo(
    name: Annotated[
        str | None, typer.Argument(help="A patient's name; without one, they are listed.")
    ] = None,
    healthy: Annotated[
        bool, typer.Option("--healthy", help="Run the patient's healthy twin instead.")
    ] = False,
    **flags: Any,
) -> None:
    """List small trainings with known bugs, or run one."""
    if name is None:
        wide = max(len(patient.name) for patient in PATIENTS)
        for patient in PATIENTS:
            typer.echo(
                f"{patient.name:<{wide}}  {patient.expect or 'healthy':<26}  {patient.story}"
            )
        return
    patient = find_patient(name)
    if patient.needs is not None and importlib.util.find_spec(patient.needs) is None:
        raise UsageError(
            f"the patient {name} needs {patient.needs}: pip install 'nanodoc-torch[demo]'"
        )
    settings = settings_of({**patient.options, **given_of(flags)})  # the user's go first
    with payload_on_stdout() as stdout:
        job = Job(command="run", target=patient.entrypoint(healthy=healthy), config=settings)
        deliver(with_joined_reasons(examined(job)), settings, stdout)
