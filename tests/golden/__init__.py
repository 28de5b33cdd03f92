"""Golden answers: what the library said, bit by bit, before its sources were moved about.

``golden.json`` holds short hashes of codes and scores, and none of files, names or keys. ``make golden``
compares them all; ``make test`` a part, ``make test-full`` all. When a name of the library changes,
``verbs.py`` follows, and nothing else here.

Bits of float arithmetic hang on the processor and on the packages that calculate. Elsewhere than where the
file was recorded, the parts ``exact/…`` are compared bit by bit all the same. Of the others it is compared
what must agree everywhere: which answers there are, what is refused, that C gives the reference's codes, and
scores to a tenth. To compare them whole, record them again from the commit that ``golden.json`` names;
``python -m golden --compare`` prints the commands:

    git worktree add ../before COMMIT && cd ../before
    PYTHONPATH=$PWD/src:$PWD/tests python -m golden --record --to …/tests/golden/golden.json

An answer that is meant to change is recorded anew in the commit that changes it, which says why.
"""
