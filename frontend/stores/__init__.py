"""The models that other programs keep on this machine, a file for each store.

They are read as they lie: nothing is downloaded, written or locked. A name that somebody types is only ever compared
with what a listing gives, so it can't lead out of a store.
"""
