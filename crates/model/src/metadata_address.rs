//! The addresses at which clouds serve instance metadata and other services of the host. A process that answers at such
//! an address can hand out credentials and configuration to the node and to every pod. `docs/security.md` lists the same
//! table with the source of each row; a test compares the two.
//!
//! Clouds that are not listed use 169.254.169.254: DigitalOcean, Hetzner, Vultr, UpCloud, Exoscale, OVHcloud, IBM Cloud,
//! Huawei Cloud, Yandex Cloud. A metadata service that has only a name, such as that of Equinix Metal, has no row.

use crate::address::Address;
use ipnet::IpNet;
use std::sync::LazyLock;

/// The cloud and a range of its addresses.
pub const TABLE: [(&str, &str); 16] = [
    // 169.254.169.254 is the metadata service of most clouds. AWS also has its clock (.123) and its DNS server (.253)
    // in this range, and GKE its metadata server for pods (.252).
    ("AWS, Google Cloud, Azure, Oracle Cloud, OpenStack and others", "169.254.169.0/24"),
    // Credentials of ECS tasks (.2) and of EKS pods (.23).
    ("AWS", "169.254.170.0/24"),
    ("AWS", "fd00:ec2::/32"),
    ("Google Cloud", "fd20:ce::254/128"),
    // The wire server, which gives the guest agent its certificates and extension settings.
    ("Azure", "168.63.129.16/32"),
    ("Oracle Cloud", "169.254.0.2/31"),
    ("Oracle Cloud", "169.254.0.4/31"),
    ("Oracle Cloud", "fd00:c1::a9fe:a9fe/128"),
    ("Oracle Cloud Classic", "192.0.0.192/32"),
    ("OpenStack", "fe80::a9fe:a9fe/128"),
    ("Alibaba Cloud", "100.100.100.200/32"),
    ("Alibaba Cloud", "fd00:100::100:200/128"),
    ("Tencent Cloud", "169.254.0.23/32"),
    ("Scaleway", "169.254.42.42/32"),
    ("Scaleway", "fd00:42::42/128"),
    ("Akamai (Linode)", "fd00:a9fe:a9fe::1/128"),
];

static RANGES: LazyLock<Vec<IpNet>> =
    LazyLock::new(|| TABLE.iter().filter_map(|(_, text)| text.parse().ok()).collect());

/// The range of the table that contains the address.
pub fn range_of(address: Address) -> Option<IpNet> {
    RANGES.iter().find(|range| range.contains(&address.ip())).copied()
}

/// All ranges of the table.
pub fn ranges() -> &'static [IpNet] {
    &RANGES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::parse_ip;

    #[test]
    fn the_metadata_addresses_of_all_clouds_are_known() {
        assert_eq!(RANGES.len(), TABLE.len(), "every row is a range");
        let documented = [
            "169.254.169.254",
            "169.254.169.252",
            "169.254.170.2",
            "169.254.170.23",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "168.63.129.16",
            "169.254.0.2",
            "169.254.0.5",
            "fd00:c1::a9fe:a9fe",
            "192.0.0.192",
            "fe80::a9fe:a9fe",
            "100.100.100.200",
            "fd00:100::100:200",
            "169.254.0.23",
            "169.254.42.42",
            "fd00:42::42",
            "fd00:a9fe:a9fe::1",
        ];
        for text in documented {
            assert!(range_of(Address::from(parse_ip(text).unwrap())).is_some(), "{text}");
        }
        for text in ["169.254.20.10", "169.254.0.90", "fd00:bee::1", "100.100.100.201", "192.0.0.193"] {
            assert_eq!(range_of(Address::from(parse_ip(text).unwrap())), None, "{text}");
        }
    }

    /// `| cloud | range | ... |`: the first two columns of the table below `## Metadata addresses of clouds`.
    #[test]
    fn the_documentation_lists_the_same_table() {
        let page = include_str!("../../../docs/security.md");
        let (_, section) = page.split_once("## Metadata addresses of clouds").expect("the section exists");
        let section = section.split("\n## ").next().unwrap_or_default();
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?.to_owned(), cells.next()?.strip_prefix('`')?.strip_suffix('`')?.to_owned()))
        };
        let rows: Vec<(String, String)> = section.lines().filter_map(row).collect();
        let table: Vec<(String, String)> =
            TABLE.iter().map(|(cloud, range)| ((*cloud).into(), (*range).into())).collect();
        assert_eq!(rows, table);
    }
}
