//! The conformance report. `uwarp-conformance filter` prints the tests for nextest to run; `uwarp-conformance report`
//! reads nextest's output from its input and reports which rows hold. `uwarp-conformance mutations` breaks rules, to
//! see that their tests notice.

use std::io::Read;
use std::process::ExitCode;

use uwarp_conformance::mutations::{self, Choice};
use uwarp_conformance::{Matrix, filter, passed_tests, workspace};

const USAGE: &str = "\
usage: uwarp-conformance filter
       uwarp-conformance report < OUTPUT-OF-NEXTEST
       uwarp-conformance mutations TARGET-FOLDER (COUNT | all) SEED
       uwarp-conformance mutations TARGET-FOLDER ROW[,ROW...]

filter     prints the filter with which nextest runs the tests of all rows
report     reads the output of nextest and prints which rows hold
mutations  breaks rules in a copy of the tree, which is built in cargo's target folder: COUNT of them, chosen by SEED, or
           every mutation of the named rows, such as MPA-4.5-1; fails if no test of a row notices";

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
            break_rules(target, &Choice::Sample { count, seed: number(seed)? })
        }
        ["mutations", target, rows] => break_rules(target, &Choice::Rows(rows.split(',').map(str::to_owned).collect())),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            Ok(true)
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn break_rules(target: &str, choice: &Choice) -> Result<bool, String> {
    let target = std::path::absolute(target).map_err(|error| error.to_string())?;
    let (report, complete) = mutations::run(&workspace(), &target, choice)?;
    print!("{report}");
    Ok(complete)
}
