"""The collate function that fits a batch of ragged samples, as source text."""

from __future__ import annotations

import re

from nanodoc.facts.crash import FieldFacts, RaggedFacts

_TOP = re.compile(r"^\[(?P<key>.+?)\](?P<rest>.*)$")
_PAD = """\
def pad(tensors):
    shape = [max(sizes) for sizes in zip(*(t.shape for t in tensors))]
    out = tensors[0].new_zeros(len(tensors), *shape)
    for row, t in zip(out, tensors):
        row[tuple(slice(n) for n in t.shape)] = t
    return out
"""


def collate_for(ragged: RaggedFacts) -> str | None:
    """Source of a function that pads what differs and stacks the rest; None for samples whose
    fields are nested deeper than one container."""
    if ragged.containers == "tensor" or (len(ragged.fields) == 1 and not ragged.fields[0].path):
        field = ragged.fields[0]
        call = _padding("samples", field)
        return _with_helper(f"def collate(samples):\n    return {call}", call)
    tops = {
        match["key"]: (match["rest"], field)
        for field in ragged.fields
        if (match := _TOP.match(field.path)) is not None
    }
    if len(tops) != len(ragged.fields) or any(rest for rest, _ in tops.values()):
        return None
    calls = {
        key: _column(key, field, named=ragged.containers == "dict")
        for key, (_, field) in tops.items()
    }
    if ragged.containers == "dict":
        body = "\n".join(f"        {key}: {call}," for key, call in calls.items())
        return _with_helper(f"def collate(samples):\n    return {{\n{body}\n    }}", body)
    if ragged.containers != "tuple":
        return None
    names = ", ".join(f"field{key}" for key in calls) + ("," if len(calls) == 1 else "")
    body = ", ".join(calls.values()) + ("," if len(calls) == 1 else "")
    return _with_helper(
        f"def collate(samples):\n    {names} = zip(*samples)\n    return {body}", body
    )


def _column(key: str, field: FieldFacts, *, named: bool) -> str:
    values = f"[sample[{key}] for sample in samples]" if named else f"field{key}"
    return _padding(values, field)


def _padding(values: str, field: FieldFacts) -> str:
    if not field.ragged:
        return f"default_collate({values if values.startswith('[') else f'list({values})'})"
    sizes = [size for size in field.sizes if isinstance(size, tuple)]
    item, source = (
        ("sample" + values[7 : values.index("]") + 1], "samples")
        if values.startswith("[sample")
        else ("field", values)
    )
    tensors = f"[torch.as_tensor({item}) for {item if item == 'field' else 'sample'} in {source}]"
    if len({size[1:] for size in sizes}) == 1:  # only the first dimension differs
        return f"torch.nn.utils.rnn.pad_sequence({tensors}, batch_first=True)"
    return f"pad({tensors})"


def _with_helper(source: str, body: str) -> str:
    helper = _PAD + "\n\n" if "pad([" in body.replace("pad_sequence([", "") else ""
    imports = (
        "from torch.utils.data import default_collate\n\n" if "default_collate(" in body else ""
    )
    return imports + helper + source
