"""Arrays on the simulated GPU, as other libraries would show theirs."""

from __future__ import annotations

from typing import Any

import forebay


class SimArray:
    """Bytes on the simulated GPU that speak `__cuda_array_interface__` and DLPack."""

    def __init__(self, buffer: forebay.Buffer) -> None:
        self.buffer = buffer

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def tobytes(self) -> bytes:
        return self.buffer.tobytes()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.buffer.__cuda_array_interface__

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.buffer.__dlpack__(**arguments)


class Interface:
    """Only the CUDA Array Interface, with whatever is to be different in it."""

    def __init__(self, array: SimArray, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


class Exchange:
    """Only DLPack; the first version where `is_old`."""

    def __init__(self, array: Any, is_old: bool = False) -> None:
        self.array, self.is_old = array, is_old

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device

    def __dlpack__(self, **arguments: Any) -> Any:
        if self.is_old and "max_version" in arguments:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**arguments)
