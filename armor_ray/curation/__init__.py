"""Judged data from raw documents and unaligned questions (ARMOR, appendix A). This room knows neither Ray nor the workspace.

One module per pipeline (`tele_eval`, `documents`, `teleqna`); `judging.py` runs judges and keeps a record of every verdict, `curated.py` is
what a pipeline ends with, `files.py` writes it down.
"""
