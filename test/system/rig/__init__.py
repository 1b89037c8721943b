"""The rig of the system tests: private servers, the sidecar under test, a scripted application, a link that can be cut."""
