"""The limit of a calibration, which is that of the harness."""

from benchmarks.harness.rounds import MAX_OFF as MAX_OFF
