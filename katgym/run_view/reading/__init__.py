"""Folders of runs read as the data of pages."""
