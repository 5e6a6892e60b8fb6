//! Nothing of its own: its tests hold the structure of the workspace.

#![forbid(unsafe_code)]
