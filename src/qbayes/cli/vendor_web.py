"""``python -m qbayes.cli.vendor_web``: fetch ONNX Runtime Web, which pages of ``qbayes export`` carry."""

import sys

from qbayes.errors import QbayesError
from qbayes.export.web.runtime_files import PACKAGE, VENDORED, VERSION, is_vendored, runtime_files, vendor


def main() -> int:
    try:
        if is_vendored():
            runtime_files()
        else:
            vendor()
    except QbayesError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{PACKAGE} {VERSION} is in {VENDORED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
