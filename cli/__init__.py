"""The command line: results on standard output, progress and messages on standard error.

Exit codes: 0 done, 1 a check failed, 2 the input or the words are wrong, 3 this build can't do it, 70 a fault of
ggufc, 71 out of memory, 129 the terminal was closed, 130 interrupted, 141 nobody reads the output any more, 143
terminated.
"""

import logging
import os

import click

from .group import MODEL, Cli
from .options import debug_option
from .output import Notes

FIRST_STEPS = """\
ggufc compiles a GGUF model into a small program that runs on the file's own bytes. Try first:

  ggufc status                          which models are here, by the names that they can be given
  ggufc run model.gguf "Once upon a"    run one
  ggufc chat model.gguf                 talk with it
  ggufc export model.gguf -o model/     compile it for a program or a device of yours
  ggufc inspect model.gguf              what is in it, and what it costs
  ggufc --help                          everything else

A model is a file, a bundle, or a name in the Ollama store or the Hugging Face cache; nothing is ever downloaded.
"""

logging.getLogger("ggufc").addHandler(Notes())


@click.group(
    cls=Cli, invoke_without_command=True, epilog=MODEL, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="ggufc", message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def main(ctx: click.Context) -> None:
    """Compile a GGUF model into a small program that runs on the file's own bytes.

    \b
    Example: ggufc export gemma.gguf -o gemma/
             ggufc run gemma/ "The capital of France is"
             ggufc run --help

    Words are completed by the shell after, for bash (zsh and fish are the same):

    \b
      eval "$(_GGUFC_COMPLETE=bash_source ggufc)"
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.invoked_subcommand is None:
        click.echo(FIRST_STEPS, nl=False)
