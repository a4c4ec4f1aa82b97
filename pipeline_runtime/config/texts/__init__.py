"""The texts of a manifest: YAML documents, URIs, credentials in them, and text for a terminal."""
