//! The matrix itself: its files agree, every named test exists, and the report is right.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use uwarp_conformance::mutations::{self, Choice, Mutation};
use uwarp_conformance::{Level, Matrix, Row, filter, passed_tests, workspace};

fn matrix() -> Matrix {
    Matrix::read(&workspace().join("tests/data/conformance")).unwrap_or_else(|error| panic!("{error}"))
}

/// Folders of the workspace's packages by name.
fn packages() -> BTreeMap<String, PathBuf> {
    let read = |path: &Path| -> toml::Table {
        std::fs::read_to_string(path.join("Cargo.toml")).expect("a manifest").parse().expect("a manifest is TOML")
    };
    let members = read(&workspace())["workspace"]["members"].as_array().expect("members").clone();
    members
        .iter()
        .map(|member| {
            let folder = workspace().join(member.as_str().expect("a folder"));
            (read(&folder)["package"]["name"].as_str().expect("a name").to_owned(), folder)
        })
        .collect()
}

/// Whether one of the files has a function of this name, behind `#[test]` or in a macro of tests.
fn has_test(files: &[PathBuf], name: &str) -> bool {
    files.iter().any(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.contains(&format!("fn {name}(")) && text.contains("#[test]")
    })
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn there_are_all_rows() {
    assert_eq!(matrix().rows.len(), 488);
}

#[test]
fn every_test_that_is_named_is_in_the_tree() {
    let packages = packages();
    let mut wrong = Vec::new();
    for test in matrix().tests() {
        let (binary, path) = test.split_once(' ').unwrap_or_else(|| panic!("{test:?} is no name of a test"));
        let (package, target) = binary.split_once("::").unwrap_or((binary, ""));
        let Some(folder) = packages.get(package) else {
            wrong.push(format!("{test}: no such package"));
            continue;
        };
        let mut files = Vec::new();
        if target.is_empty() {
            sources(&folder.join("src"), &mut files);
        } else {
            files.extend([folder.join(format!("tests/{target}.rs"))]);
            sources(&folder.join("tests").join(target), &mut files);
        }
        let name = path.rsplit("::").next().unwrap_or(path);
        if !has_test(&files, name) {
            wrong.push(format!("{test}: no such test"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn row(id: &str, level: Level) -> Row {
    Row {
        id: id.to_owned(),
        document: "RFC 0".to_owned(),
        section: "1".to_owned(),
        level,
        side: "Both".to_owned(),
        text: "words".to_owned(),
    }
}

#[test]
fn a_row_is_shown_only_if_all_of_its_tests_passed() {
    let rows = ["A-1", "A-2", "A-3", "A-4", "A-5", "A-6"].map(|id| row(id, Level::Must)).to_vec();
    let shown = [("A-1", vec!["p a"]), ("A-2", vec!["p a", "p b"]), ("A-3", vec!["p c"])];
    let shown = shown.map(|(id, tests)| (id.to_owned(), tests.into_iter().map(str::to_owned).collect()));
    let argued = BTreeMap::from([("A-4".to_owned(), "because".to_owned())]);
    let not_built = BTreeMap::from([("A-6".to_owned(), "a part".to_owned())]);
    let matrix = Matrix { rows, shown: BTreeMap::from(shown), argued, not_built };
    let passed = passed_tests("   PASS [   0.016s] p a\n  PASS [   1.0s] (2/3) p c\n   FAIL [   0.016s] p b\n");
    assert_eq!(passed, BTreeSet::from(["p a".to_owned(), "p c".to_owned()]));
    let report = matrix.report(&passed);
    assert_eq!((report.shown, report.argued, report.not_built), (2, 1, 1));
    assert_eq!(report.failed, ["A-2: did not run or did not pass: p b"]);
    assert_eq!(report.open, ["A-5 (RFC 0, Must): words"]);
    assert_eq!(report.argued_musts, ["A-4: because"]);
    assert!(!report.is_complete());
    assert!(report.text().ends_with("6 rows: 2 shown, 1 argued, 1 not built, 2 open\n"), "{}", report.text());
}

#[test]
fn levels_and_filters() {
    assert_eq!(Level::parse("S/MN"), Ok(Level::Must));
    assert_eq!(Level::parse("O/d"), Ok(Level::May));
    assert!(Level::parse("X").is_err());
    assert_eq!(
        filter(["uwarp-iwarp vectors::x", "uwarp::operations y"]).as_deref(),
        Ok("(binary_id(=uwarp-iwarp) & test(=vectors::x)) | (binary_id(=uwarp::operations) & test(=y))")
    );
    assert!(filter(["nonsense"]).is_err());
}

#[test]
fn every_rule_that_is_broken_stands_in_its_file_and_has_a_test() {
    let matrix = matrix();
    let all = mutations::read(&uwarp_conformance::workspace().join("tests/data/conformance")).expect("readable");
    assert!(all.len() >= 60, "{}", all.len());
    for mutation in &all {
        assert!(!mutations::tests(&matrix, &mutation.row).is_empty(), "no test for {}", mutation.row);
        let path = uwarp_conformance::workspace().join(&mutation.file);
        let text = std::fs::read_to_string(&path).expect("the file");
        mutations::with_switches(&mutation.file, &text, &all).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn only_programs_that_hold_a_test_are_built() {
    let tests = ["uwarp-iwarp transmit::x", "uwarp-sim-tests::commit y", "uwarp-wire z", "uwarp-sim-tests::commit w"];
    let expected =
        ["--lib", "--package=uwarp-iwarp", "--package=uwarp-sim-tests", "--package=uwarp-wire", "--test=commit"];
    assert!(mutations::programs(tests).iter().eq(expected));
}

fn mutation(rule: &str, broken: &str, after: &str) -> Mutation {
    Mutation {
        row: "A-1".into(),
        breaks: "something".into(),
        file: "stack/tcp/src/a.rs".into(),
        before: String::new(),
        rule: rule.into(),
        broken: broken.into(),
        after: after.into(),
    }
}

#[test]
fn mutations_are_chosen_by_seed_or_by_the_names_of_their_rows() {
    let of = |row: &str| Mutation { row: row.into(), ..mutation("a", "b", "") };
    let all = ["A-1", "A-2", "A-1", "A-10", "A-3"].map(of);
    let sample = |count, seed| Choice::Sample { count, seed }.of(&all);
    assert_eq!(sample(None, 1), Ok(vec![0, 1, 2, 3, 4]));
    assert_eq!(sample(Some(2), 7).map(|chosen| chosen.len()), Ok(2));
    assert_eq!(sample(Some(2), 7), sample(Some(2), 7));
    let rows = |rows: &[&str]| Choice::Rows(rows.iter().map(|row| (*row).to_owned()).collect()).of(&all);
    assert_eq!(rows(&["A-3", "A-1"]), Ok(vec![0, 2, 4]), "all of a row, in the order of the file");
    assert_eq!(rows(&["A-1", "A-7"]), Err("mutations.toml has no mutation of the row \"A-7\"".to_owned()));
}

#[test]
fn switches_go_into_their_places() {
    let text = "let a = b + 1; let c = b + 1 > 0;";
    let broken = [mutation("b + 1", "0", ";"), mutation("b + 1", "9", " >"), mutation("b + 1", "8", " >")];
    let [one, two, three] = [1, 2, 3].map(mutations::switch);
    assert_eq!(
        mutations::with_switches("stack/tcp/src/a.rs", text, &broken),
        Ok(format!(
            "let a = (if {one} {{ 0 }} else {{ b + 1 }}); \
             let c = (if {two} {{ 9 }} else {{ (if {three} {{ 8 }} else {{ b + 1 }}) }}) > 0;"
        ))
    );
    assert!(mutations::with_switches("stack/tcp/src/a.rs", text, &[mutation("b + 1", "0", "")]).is_err());
    assert!(mutations::with_switches("stack/tcp/src/a.rs", text, &[mutation("b + 2", "0", "")]).is_err());
    let overlapping = [mutation("b + 1", "0", ";"), mutation("1; let", "0", "")];
    assert!(mutations::with_switches("stack/tcp/src/a.rs", text, &overlapping).is_err());
}
