"""KvikIO's codecs on a GPU, which move no bytes and are not offered."""

raise ImportError(
    "forebay.kvikio has no codecs: use `CudaCodec` of `kvikio.numcodecs`, "
    "which works with this package"
)
