"""Four ways to bring the same rows to the same model, and proof that they are the same.

Reading order: `workloads` (the three levels of work) → `lastmile_loader`, `torch_loader`,
`stock_loader` (who does it) → `checksums`, `consumers` (what is done with a batch, and the proof)
→ `hosts`, `epochs` (one measured epoch, in a process of its own) → `schedule` (which epochs, in
which order) → `results` → `report` and `figure`.
"""
