"""The constants of SplitMix64's finaliser, for `hashing` and for its compiled twin.

Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants by
David Stafford, "Better bit mixing", variant 13, public domain code at
https://prng.di.unimi.it/splitmix64.c.
"""

# Odd integer nearest to 2**64 divided by the golden ratio: SplitMix64's increment.
GOLDEN = 0x9E3779B97F4A7C15
STAFFORD_1 = 0xBF58476D1CE4E5B9
STAFFORD_2 = 0x94D049BB133111EB
