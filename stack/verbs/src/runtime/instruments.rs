//! Faults that engines inject into frames, and captures of frames.

use crate::config::FaultOptions;
use crate::error::Error;
use crate::runtime::core::Core;
use crossbeam::channel::bounded;
use uwarp_engine::command::Command;
use uwarp_engine::ports::decorated::{FaultRates, Rates};
use uwarp_engine::ports::middlebox::Recutting;

fn rates(faults: &FaultOptions) -> Rates {
    Rates {
        loss: faults.loss / 100.0,
        duplication: faults.duplicate / 100.0,
        reordering: faults.reorder / 100.0,
        corruption: faults.corrupt / 100.0,
        marking: faults.mark / 100.0,
    }
}

/// Switches faults on or off in every engine.
pub(crate) fn set_faults(core: &Core, faults: Option<FaultOptions>) -> Result<(), Error> {
    if let Some(faults) = &faults {
        faults.validate()?;
    }
    for (index, engine) in core.engines.iter().enumerate() {
        engine.command(Command::SetFaults {
            faults: faults.map(|faults| FaultRates {
                // Each engine throws its own dice.
                seed: faults.seed.wrapping_add(index as u64),
                transmit: rates(&faults),
                receive: if faults.incoming { rates(&faults) } else { Rates::default() },
                recutting: Recutting { cutting: faults.recut / 100.0, joining: faults.recut / 100.0 },
                recut_received_only: faults.recut_received_only,
            }),
        });
    }
    Ok(())
}

/// Starts a capture in every engine: the first writes to `path`, the others to the same name with `.1`, `.2`, ...
pub(crate) fn start_capture(core: &Core, path: &std::path::Path) -> Result<(), Error> {
    for (index, engine) in core.engines.iter().enumerate() {
        let mut path = path.to_path_buf();
        if index > 0 {
            path.as_mut_os_string().push(format!(".{index}"));
        }
        let (reply, answer) = bounded(1);
        engine.command(Command::StartCapture { path, reply });
        core.reply(index, &answer)?.map_err(Error::Control)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_faults_are_percentages() {
        let faults = FaultOptions {
            loss: 1.0,
            duplicate: 2.0,
            reorder: 3.0,
            corrupt: 4.0,
            mark: 5.0,
            ..FaultOptions::default()
        };
        let rates = rates(&faults);
        let shares = [rates.loss, rates.duplication, rates.reordering, rates.corruption, rates.marking];
        assert_eq!(shares, [0.01, 0.02, 0.03, 0.04, 0.05]);
    }
}
