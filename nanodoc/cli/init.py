"""`nanodoc init TRAIN.py`: the beginning of a recipe, from what a script or notebook defines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nanodoc.errors import UsageError
from nanodoc.recipe.outline import outline, recipe_text


def init(
    file: Annotated[Path, typer.Argument(help="The training script or notebook.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="The file to write (default: TRAIN_recipe.py in the same folder)."
        ),
    ] = None,
) -> None:
    """Write a recipe to fill in, from a training file.

    It uses the models, data sets and functions that a script or notebook defines. Nothing of the
    file is run.
    """
    found = outline(file)
    path = output or file.with_name(f"{found.module}_recipe.py")
    try:
        with path.open("x", encoding="utf-8") as target:
            target.write(recipe_text(found, path, file))
    except FileExistsError:
        raise UsageError(f"{path} already exists; choose another file with --output") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    typer.echo(f"wrote {path}. Replace each ... in it, then run")
    typer.echo(f"    nanodoc run {path}:build")
