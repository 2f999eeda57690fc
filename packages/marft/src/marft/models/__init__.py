"""Model loading, multi-adapter LoRA in a shared forward, the value head, and chunked log-probabilities."""

import logging

# transformers imports bitsandbytes if installed, which then recommends optional kernels at every start
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
