"""Spreadsheets: values, looks, charts, pivot tables, filters."""
