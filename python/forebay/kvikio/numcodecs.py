"""KvikIO's base class for codecs on a GPU, which moves no bytes and is not offered."""

raise ImportError(
    "forebay.kvikio has no codecs: take `CudaCodec` from `kvikio.numcodecs`, "
    "which works next to this package"
)
