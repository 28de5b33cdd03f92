"""``python -m qbayes.cli.vendor_web``: fetch ONNX Runtime Web, which pages of ``qbayes export`` carry."""

import sys

from qbayes.errors import BadFile, QbayesError
from qbayes.export.web.runtime_files import PACKAGE, VENDORED, VERSION, runtime_files, vendor


def main() -> int:
    try:
        try:
            runtime_files()
        except BadFile:  # missing, damaged, or of another version
            vendor()
    except QbayesError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{PACKAGE} {VERSION} is in {VENDORED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
