"""What any trained model can be asked: attention, probes, errors by state, segments of its instances, what it costs."""
