"""A thread that goes through memory all the time."""
import numpy

a, b = numpy.zeros(1 << 27, dtype=numpy.uint8), numpy.zeros(1 << 27, dtype=numpy.uint8)
while True:
    numpy.copyto(b, a)
    numpy.copyto(a, b)
