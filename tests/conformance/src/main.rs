//! The conformance report. `uwarp-conformance filter` prints the tests for nextest to run; `uwarp-conformance report`
//! reads nextest's output from its input and reports which rows hold. `uwarp-conformance mutations` breaks rules, to
//! see that their tests notice.

use std::io::Read;
use std::process::ExitCode;

use uwarp_conformance::{Matrix, filter, mutations, passed_tests, workspace};

const USAGE: &str =
    "usage: uwarp-conformance filter | report < OUTPUT-OF-NEXTEST | mutations TARGET-FOLDER (COUNT | all) SEED";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("uwarp-conformance: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let matrix = || Matrix::read(&workspace().join("tests/data/conformance"));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["filter"] => {
            println!("{}", filter(matrix()?.tests())?);
            Ok(true)
        }
        ["report"] => {
            let mut output = String::new();
            std::io::stdin().read_to_string(&mut output).map_err(|error| error.to_string())?;
            let report = matrix()?.report(&passed_tests(&output));
            print!("{}", report.text());
            Ok(report.is_complete())
        }
        ["mutations", target, count, seed] => {
            let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number\n{USAGE}"));
            let count = if count == "all" { None } else { Some(number(count)? as usize) };
            let target = std::path::absolute(target).map_err(|error| error.to_string())?;
            let (report, complete) = mutations::run(&workspace(), &target, count, number(seed)?)?;
            print!("{report}");
            Ok(complete)
        }
        ["--help" | "-h"] => {
            println!("{USAGE}");
            Ok(true)
        }
        _ => Err(USAGE.to_owned()),
    }
}
