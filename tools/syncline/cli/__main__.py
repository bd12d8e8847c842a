"""The ``syncline`` command: ``python -m syncline.cli`` is the same.

Exit code 0: it worked. 1: it did not, and stderr has one line ``error: ...`` that says why. 2: the
command line itself was wrong. 130: interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from syncline.sync import SyncError

from . import (
    _bench,
    _chat,
    _compliance,
    _demo,
    _inspect,
    _record,
    _replay,
    _serve,
    _sessions,
    _simulate,
    _sync,
    _teeth,
    _verify,
    _write,
)

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="syncline", prog_name="syncline")
def cli() -> None:
    """Write offline on many devices, sync through one server, settle, agree.

    \b
    A server, a replica, a write, a sync:
      syncline serve --data server.db
      syncline init notes.db
      syncline put notes.db todo milk title="Buy milk"
      syncline sync notes.db ws://127.0.0.1:8787
    """


for _command in (
    _serve.serve,
    _serve.backup,
    _serve.restore,
    _write.init,
    _write.put,
    _write.patch,
    _write.delete,
    _write.get,
    _write.resolve,
    _sync.sync,
    _chat.chat,
    _inspect.status,
    _sessions.sessions,
    _inspect.records,
    _inspect.log,
    _inspect.conflicts,
    _verify.verify,
    _compliance.anchor,
    _compliance.ledger,
    _compliance.erase,
    _demo.demo,
    _record.record,
    _replay.replay,
    _simulate.simulate,
    _teeth.teeth,
    _bench.bench,
):
    cli.add_command(_command)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        code = cli.main(args, prog_name="syncline", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SyncError as error:
        return _failed(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _failed(f"{error.filename or 'the system'}: {error.strerror or error}")


def _failed(sentence: str) -> int:
    click.echo(f"error: {' '.join(sentence.split())}", err=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
