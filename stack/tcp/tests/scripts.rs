//! The packet scripts, by subject. How to read one: see `script/mod.rs`.

mod script;

macro_rules! files {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let count = script::run_file(stringify!($name), include_str!(concat!("scripts/", stringify!($name), ".txt")));
            assert!(count > 0);
        }
    )*};
}

files! { listen open close data window recovery ecn timers robustness urgent }

#[test]
fn expectation_without_a_section_is_refused() {
    let uncited = |code: &str| {
        let text = format!("== one\nconfig\n connect\n > S 0 mss 1460 ws 5 sackOK # RFC 9293 §3.5\n{code}\n");
        script::run(&script::parse::scripts(&text)[0]).is_err_and(|why| why.ends_with("no citation"))
    };
    assert!(uncited("state SYN-SENT"));
    assert!(uncited("+1ms state SYN-SENT # as everywhere"));
    assert!(uncited("state SYN-SENT # own:"));
    assert!(!uncited("state SYN-SENT # own: for the sake of it"));
    assert!(!uncited("state SYN-SENT # RFC 9293 §3.3.2"));
    assert!(!uncited("+1ms < R 5"));
    assert!(!uncited("push 10"));
    assert!(uncited("+1s > S 0 mss 1460 ws 5 sackOK # own: what is sent is no matter of ours"));
    assert!(!uncited("+1s > S 0 mss 1460 ws 5 sackOK # RFC 6298 §2.1"));
}
