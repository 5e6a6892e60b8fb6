//! A PCI device before DPDK looks at it: whether there is one, and which driver of the kernel has it.

use std::path::Path;

use dpdk_sys::DRIVERS;

use crate::Error;
use crate::error::REBUILD;

/// DPDK's drivers of PCI devices in a program with DPDK inside.
pub const NIC_DRIVERS: &[&str] = &["net_e1000", "net_virtio"];

/// Checks that DPDK can have the device with this address. `hugepages`: DPDK's memory is in hugepages.
///
/// # Errors
/// The reason why not, and the cure.
pub(crate) fn check(address: &str, hugepages: bool) -> Result<(), Error> {
    let folder = Path::new("/sys/bus/pci/devices").join(address);
    if !folder.is_dir() {
        return Err(Error::Configuration(format!(
            "there is no PCI device {address}: 'lspci -D' lists them, as in 0000:01:00.0"
        )));
    }
    let driver = std::fs::read_link(folder.join("driver")).ok();
    check_driver(address, driver.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()), hugepages)
}

fn check_driver(address: &str, driver: Option<&str>, hugepages: bool) -> Result<(), Error> {
    let reason = match driver {
        // The last ones share the device with DPDK.
        Some("vfio-pci" | "mlx4_core" | "mlx5_core" | "mana") => return Ok(()),
        Some("uio_pci_generic" | "igb_uio") if hugepages => return Ok(()),
        Some(driver @ ("uio_pci_generic" | "igb_uio")) => {
            return Err(Error::Configuration(format!(
                "the PCI device {address} is bound to {driver}, which works with hugepages alone: set hugepages = true \
                 in [eal] (--hugepages), or bind the device to vfio-pci"
            )));
        }
        Some(driver) => format!("the kernel's driver {driver} has it"),
        None => "it is bound to no driver".to_owned(),
    };
    Err(Error::Unsupported {
        device: format!("the PCI device {address}"),
        reason: format!("{reason}: bind it to vfio-pci ('dpdk-devbind.py --bind=vfio-pci {address}')"),
    })
}

/// A device of which DPDK has made no port, for this reason.
pub(crate) fn without_port(address: &str, reason: &str) -> Error {
    let mut reason = format!("DPDK has made no port of it ({reason})");
    if !DRIVERS.is_empty() {
        reason = format!(
            "{reason}. This build of uwarp has the drivers {} of NICs: for another, {REBUILD}",
            NIC_DRIVERS.join(" and ")
        );
    }
    Error::Unsupported { device: format!("the PCI device {address}"), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "0000:03:00.0";

    fn refusal(driver: Option<&str>, hugepages: bool) -> Option<String> {
        check_driver(ADDRESS, driver, hugepages).err().map(|error| error.to_string())
    }

    #[test]
    fn a_device_that_dpdk_cannot_have_is_refused_with_the_cure() {
        assert_eq!(refusal(Some("vfio-pci"), false), None);
        assert_eq!(refusal(Some("uio_pci_generic"), true), None);
        for (driver, hugepages, cure) in [
            (Some("uio_pci_generic"), false, "hugepages = true"),
            (Some("e1000e"), true, "--bind=vfio-pci 0000:03:00.0"),
            (None, true, "--bind=vfio-pci 0000:03:00.0"),
        ] {
            let refusal = refusal(driver, hugepages).expect("a refusal");
            assert!(refusal.contains(ADDRESS) && refusal.contains(cure), "{refusal}");
        }
        let absent = check("0000:ff:1f.7", true).expect_err("no device").to_string();
        assert!(absent.contains("lspci -D"), "{absent}");
    }

    #[test]
    fn a_device_without_port_has_the_drivers_of_this_build_named() {
        let error = without_port(ADDRESS, "unknown device").to_string();
        assert!(error.contains(ADDRESS) && error.contains("unknown device"), "{error}");
        assert_eq!(error.contains("UWARP_DPDK=shared"), !DRIVERS.is_empty(), "{error}");
        for driver in NIC_DRIVERS {
            assert!(DRIVERS.is_empty() || DRIVERS.contains(driver), "{driver} is not inside");
        }
    }
}
