"""The `nanodoc` command. What is imported here is imported before anything else happens."""

import os
import sys

from nanodoc.supervise.start import drop_early, start_early


def main() -> None:
    """Entry point of the command. The process of a training is started before the command line is
    read, which takes as long as a part of its imports."""
    needless = {"--help", "--in-process"} & set(sys.argv)
    if os.name == "posix" and sys.argv[1:2] == ["run"] and len(sys.argv) > 2 and not needless:
        start_early()
    try:
        from nanodoc.cli.app import main as command

        command()
    finally:
        drop_early()


if __name__ == "__main__":
    main()
