//! What the instruction budgets of the C interface count.

#[test]
fn every_write_arrives_and_completes() {
    uwarp_verbs_abi::measure::write_and_poll(100, 64).expect("all succeed");
}
