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

files! { open close data window recovery ecn timers robustness urgent }
