"""The floor: the smallest honest program for the job, which Syncline's figures are a multiple of.

The program itself stands in ``syncline.cli.bench._floor``, so that ``syncline bench`` has it
wherever Syncline is installed. This runs its server alone:

    python -m benchmarks.floor --data FILE [--port PORT]        until it is ended
"""

from syncline.cli.bench._floor import main

if __name__ == "__main__":
    raise SystemExit(main())
