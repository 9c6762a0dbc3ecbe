"""The command line: results on standard output, progress and messages on standard error.

Exit codes: 0 done, 1 a check failed, 2 the input or the words are wrong, 3 this build can't do it, 70 a fault of
ggufc, 71 out of memory, 129 the terminal was closed, 130 interrupted, 141 nobody reads the output any more, 143
terminated.
"""

import logging

import click

from .group import Cli
from .options import debug_option
from .output import Notes

FIRST_STEPS = """\
ggufc compiles a GGUF model into a small program that runs on the file's own bytes. Try first:

  ggufc export model.gguf -o model/     compile it
  ggufc run model/ "Once upon a time"   run it
  ggufc inspect model.gguf              what is in it
  ggufc --help                          everything else
"""

logging.getLogger("ggufc").addHandler(Notes())


@click.group(cls=Cli, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ggufc", message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def main(ctx: click.Context) -> None:
    """Compile a GGUF model into a small program that runs on the file's own bytes.

    MODEL is a .gguf file or a bundle that `ggufc export` wrote.
    """
    if ctx.invoked_subcommand is None:
        click.echo(FIRST_STEPS, nl=False)
