"""The constants of MurmurHash3 for x86 with 32 bits, for `bucketing` and for its compiled twin.

Austin Appleby, public domain code at https://github.com/aappleby/smhasher.
"""

BLOCK_FACTOR_1 = 0xCC9E2D51
BLOCK_FACTOR_2 = 0x1B873593
HASH_FACTOR = 5
HASH_INCREMENT = 0xE6546B64
FINAL_FACTOR_1 = 0x85EBCA6B
FINAL_FACTOR_2 = 0xC2B2AE35
