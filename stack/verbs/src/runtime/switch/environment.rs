//! The configuration of a program by its environment.

use super::{CONFIG_VARIABLE, SWITCH_VARIABLE, find};
use crate::config::{Config, ConfigError};
use std::path::PathBuf;

impl Config {
    /// The configuration of a program that nobody gave one, by its environment: the file that `UWARP_CONFIG` names;
    /// else the switch whose socket `UWARP_SWITCH` names; else the switch at the first of
    /// [`default_sockets`](crate::switch::default_sockets) at which one listens.
    ///
    /// # Errors
    /// The file cannot be used; or there is neither a file nor a switch, with what to start.
    pub fn from_environment() -> Result<Self, ConfigError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(file) = variable(CONFIG_VARIABLE) {
            return Self::from_toml_file(PathBuf::from(file));
        }
        if let Some(socket) = variable(SWITCH_VARIABLE) {
            return Ok(Self::on_switch(socket));
        }
        find().map(Self::on_switch).ok_or_else(|| {
            ConfigError::new(format!(
                "there is no network: start uwarp-switch or run the program with uwarp-run, or name a switch's socket in {} or a \
                 configuration file in {}",
                SWITCH_VARIABLE,
                CONFIG_VARIABLE
            ))
        })
    }
}
