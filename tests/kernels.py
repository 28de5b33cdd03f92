"""Where tests of Triton kernels run: on a GPU, or anywhere by its interpreter (``TRITON_INTERPRET=1``)."""

from needs import ON_GPU

DEVICE = "cuda" if ON_GPU else "cpu"
