"""Does loading hide behind training, and training behind loading?

The built-in model trains on one core, by its own loop; readers and collation have another. Readers
are threads of the trainer's process, or a process of their own, with all of Ray on the data's core.
These sessions take turns within a round, each over the same table, each counted in its steady state
in delivered rows per second:

    model            batches frozen in memory, at least 64 different ones   F
    feed, by each    batches taken, nothing done with them                  S, the better of the two
    both, by each    the training as it is                                  R, to be min(F, S)
    model, beside    frozen batches, while a process makes chunks on the other core that nobody uses

Models from small to large are tried first; of them those go on whose S/F comes closest to 0.5 (the
model waits for data), 1 and 2 (data wait for the model). Bars are judged of the readers that
`feed: Auto` settles on, by its own rule: threads while the trainer waits much for rows. What the
model loses beside chunks that it never sees is what cores, caches and memory of this machine take
from each other: no feed gives it that back. A round in which the model alone is far off its median
is set aside, repeated and counted.

    command     options, results and their files
    rounds      sessions in turn, and which rounds count
    sessions    one session: who reads, who trains, on which core
    neighbour   the process beside the model
    report      the page and the picture
"""
