//! The settings of the packet path.

use super::value::DetectLocalModeArg;
use super::{HumanDuration, Options, OrOff};
use anyhow::bail;
use beeline_agent::packet_path::PacketSettings;
use beeline_agent::packet_path::device::{DevicePattern, DeviceRules};
use beeline_model::rules::HostRole;
use beeline_netfilter::sysctl::ConntrackSettings;
use std::time::Duration;

/// The filter of the packet program is the first on kernels that order filters by priority.
const PRIORITY: u16 = 1;

impl Options {
    pub fn packet_filter_priority(options: Option<&Options>) -> u32 {
        u32::from(options.and_then(|options| options.packet_priority).unwrap_or(PRIORITY))
    }

    /// Whether packets from outside are served.
    pub(super) fn has_packet_path(&self) -> bool {
        self.packet_path.is_some_and(Into::into)
    }

    /// `None` if packets from outside are not served.
    pub(super) fn packet_settings(&self) -> anyhow::Result<Option<PacketSettings>> {
        if !self.has_packet_path() {
            return Ok(None);
        }
        if self.beside_kube_proxy {
            bail!(
                "--packet-path on: kube-proxy serves packets from outside; remove --beside-kube-proxy, or set --packet-path off"
            );
        }
        if self.host_role() != HostRole::Node {
            bail!(
                "--packet-path on: only a Node serves packets from outside; set --packet-path off with this --host-role"
            );
        }
        self.check_local_mode()?;
        let patterns = self.packet_devices.iter().flatten().map(|word| DevicePattern::parse(word)).collect();
        Ok(Some(PacketSettings {
            devices: DeviceRules {
                patterns,
                pod_prefix: self.pod_interface_name_prefix.clone(),
                pod_bridge: self.pod_bridge_interface.clone(),
            },
            order: self.packet_order.map_or_else(Default::default, Into::into),
            priority: Options::packet_filter_priority(Some(self)),
            masquerades_all: self.masquerade_all,
            local_mode: self.detect_local_mode.map_or_else(Default::default, Into::into),
            conntrack: self.conntrack_settings(),
        }))
    }

    fn conntrack_settings(&self) -> ConntrackSettings {
        let default = ConntrackSettings::default();
        let timeout = |given: Option<OrOff<HumanDuration>>, default: Duration| match given {
            None => default,
            Some(given) => given.enabled().map_or(Duration::ZERO, |timeout| timeout.0),
        };
        ConntrackSettings {
            max_per_core: self.conntrack_max_per_core.unwrap_or(default.max_per_core),
            min: self.conntrack_min.unwrap_or(default.min),
            tcp_timeout_established: timeout(self.conntrack_tcp_timeout_established, default.tcp_timeout_established),
            tcp_timeout_close_wait: timeout(self.conntrack_tcp_timeout_close_wait, default.tcp_timeout_close_wait),
            tcp_be_liberal: self.conntrack_tcp_be_liberal,
        }
    }

    /// Each mode needs its option.
    fn check_local_mode(&self) -> anyhow::Result<()> {
        match self.detect_local_mode {
            Some(DetectLocalModeArg::ClusterCidr) if self.cluster_cidr.is_none() => {
                bail!("--detect-local-mode ClusterCIDR: --cluster-cidr is required")
            }
            Some(DetectLocalModeArg::BridgeInterface) if self.pod_bridge_interface.is_none() => {
                bail!("--detect-local-mode BridgeInterface: --pod-bridge-interface is required")
            }
            Some(DetectLocalModeArg::InterfaceNamePrefix) if self.pod_interface_name_prefix.is_none() => {
                bail!("--detect-local-mode InterfaceNamePrefix: --pod-interface-name-prefix is required")
            }
            _ => Ok(()),
        }
    }
}
