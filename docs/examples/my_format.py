"""A format whose files are their samples' bytes, one after another: docs/extending.md."""

from datagen.formats.format_base import FormatBase, OpenFile, Sample


class Format(FormatBase):
    def file_bytes(self, spec, shapes):
        return shapes.prod(axis=1) * spec.element_bytes * spec.num_samples_per_file

    def write(self, job, writer, buffer):
        data = buffer.view(job.payload_bytes)
        job.content.fill(data, job.running_index, 0)
        writer.write(data)

    def parse(self, data, samples, scratch):
        return Samples(data, samples)


class Samples(OpenFile):
    def __init__(self, data, samples):
        self.data, self.size = data, len(data) // samples

    def sample(self, index):
        begin = index * self.size
        data = self.data[begin : begin + self.size]
        return Sample(data, data, begin)
