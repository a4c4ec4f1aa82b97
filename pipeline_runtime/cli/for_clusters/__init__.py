"""The functions that the commands for clusters borrow: fetch and upload files, write pages."""
