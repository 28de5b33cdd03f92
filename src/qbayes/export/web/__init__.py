"""A page that runs programs in the browser: a manifest, the models, ONNX Runtime Web and our own scripts."""

from qbayes.export.web.folder import page_files
from qbayes.export.web.manifest import Shown

__all__ = ["Shown", "page_files"]
