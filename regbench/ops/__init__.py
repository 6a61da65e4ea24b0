"""Ops: one folder each, a naive form beside its fast forms, one public function."""
