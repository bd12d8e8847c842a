"""``syncline bench``: what syncing costs here, measured with real processes, files and sockets.

A **workload** is one file that plays a script to a **side**: Syncline, or the **floor**, the
smallest honest program for the same job. A **stage** holds the processes and files of one
measurement: servers, and **actors**, which are client processes that play a part. A **result**
holds figures, each with its spread and its ratio to the baseline that ran in the same rounds.

Nothing is imported here: the floor's server runs from this package too, and is to hold nothing in
its memory that it has no use for.
"""
