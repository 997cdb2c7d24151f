//! Types of option values. The command line (clap) and the configuration file (serde) parse them from the same text, so
//! that both accept the same values.

use beeline_agent::packet_path::LocalMode;
use beeline_agent::{AgentDownAction, ControllerMode};
use beeline_cluster::NodeScope;
use beeline_datapath::packet::AttachOrder;
use beeline_model::cluster::PodAccess;
use beeline_model::object::AddressType;
use beeline_model::rules::{HostRole, LocalTrafficPolicy, NoLocalEndpointAction};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// Defines an option value of a few words and its conversion into the type that the settings use.
macro_rules! word_enum {
    ($(#[$doc:meta])* $name:ident => $target:ident { $($variant:ident = $word:literal => $value:expr),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
        pub enum $name {
            $(#[value(name = $word)] #[serde(rename = $word)] $variant,)+
        }

        impl From<$name> for $target {
            fn from(word: $name) -> $target {
                match word {
                    $($name::$variant => $value,)+
                }
            }
        }
    };
}

word_enum! {
    HostRoleArg => HostRole {
        Node = "node" => HostRole::Node,
        Outside = "outside" => HostRole::Outside,
        Edge = "edge" => HostRole::Edge,
    }
}

word_enum! {
    PodAccessArg => PodAccess {
        Auto = "auto" => PodAccess::Auto,
        Direct = "direct" => PodAccess::Direct,
        Node = "node" => PodAccess::Node,
    }
}

word_enum! {
    NodeSourceArg => NodeScope {
        Controller = "controller" => NodeScope::Controller,
        Watch = "watch" => NodeScope::Watch,
        Own = "own" => NodeScope::Own,
    }
}

word_enum! {
    ControllerArg => ControllerMode {
        Watch = "watch" => ControllerMode::Watch,
        None = "none" => ControllerMode::None,
    }
}

word_enum! {
    LocalTrafficPolicyArg => LocalTrafficPolicy {
        Kubernetes = "kubernetes" => LocalTrafficPolicy::Kubernetes,
        Strict = "strict" => LocalTrafficPolicy::Strict,
    }
}

word_enum! {
    NoLocalEndpointArg => NoLocalEndpointAction {
        Refuse = "refuse" => NoLocalEndpointAction::Refuse,
        Drop = "drop" => NoLocalEndpointAction::Drop,
    }
}

word_enum! {
    AddressTypeArg => AddressType {
        InternalIp = "InternalIP" => AddressType::Internal,
        ExternalIp = "ExternalIP" => AddressType::External,
    }
}

word_enum! {
    PacketOrderArg => AttachOrder {
        First = "first" => AttachOrder::First,
        Last = "last" => AttachOrder::Last,
    }
}

word_enum! {
    /// The names of kube-proxy.
    DetectLocalModeArg => LocalMode {
        ClusterCidr = "ClusterCIDR" => LocalMode::ClusterCidr,
        NodeCidr = "NodeCIDR" => LocalMode::NodeCidr,
        BridgeInterface = "BridgeInterface" => LocalMode::Device,
        InterfaceNamePrefix = "InterfaceNamePrefix" => LocalMode::Device,
    }
}

word_enum! {
    OnOff => bool {
        On = "on" => true,
        Off = "off" => false,
    }
}

/// The format of the log on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// A duration as people write it: a number and a unit, such as `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

/// The units and their length in milliseconds, from the longest to the shortest.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// One year in milliseconds.
const MAX_MILLIS: u64 = 365 * 24 * 3_600_000;

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<HumanDuration, String> {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
        let (Some(factor), false) = (factor, number.is_empty()) else {
            return Err("expected a number and a unit (ms, s, m or h), such as 30s".into());
        };
        match number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)) {
            Some(millis @ 1..=MAX_MILLIS) => Ok(HumanDuration(Duration::from_millis(millis))),
            _ => Err("must be greater than zero and at most one year".into()),
        }
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis() as u64;
        let (unit, factor) = UNITS.iter().find(|(_, factor)| millis.is_multiple_of(*factor)).unwrap_or(&UNITS[3]);
        write!(f, "{}{unit}", millis / factor)
    }
}

/// The address and port of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAddress, String> {
        text.parse().map(ListenAddress).map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:10249".into())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrOff<T> {
    On(T),
    Off,
}

impl<T> OrOff<T> {
    pub fn enabled(self) -> Option<T> {
        match self {
            OrOff::On(value) => Some(value),
            OrOff::Off => None,
        }
    }
}

impl<T: FromStr<Err: fmt::Display>> FromStr for OrOff<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<OrOff<T>, String> {
        match text {
            "off" => Ok(OrOff::Off),
            _ => text.parse().map(OrOff::On).map_err(|error| format!("{error}, or `off`")),
        }
    }
}

impl<T: fmt::Display> fmt::Display for OrOff<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrOff::On(value) => value.fmt(f),
            OrOff::Off => f.write_str("off"),
        }
    }
}

/// The greatest age of a snapshot that is still used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxAge {
    Forever,
    Limited(HumanDuration),
}

impl FromStr for MaxAge {
    type Err = String;

    fn from_str(text: &str) -> Result<MaxAge, String> {
        match text {
            "forever" => Ok(MaxAge::Forever),
            _ => text.parse().map(MaxAge::Limited).map_err(|error| format!("{error}, or `forever`")),
        }
    }
}

impl fmt::Display for MaxAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaxAge::Forever => f.write_str("forever"),
            MaxAge::Limited(age) => age.fmt(f),
        }
    }
}

/// What the BPF programs do while no agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentDownArg {
    Keep,
    Passthrough(HumanDuration),
}

impl FromStr for AgentDownArg {
    type Err = String;

    fn from_str(text: &str) -> Result<AgentDownArg, String> {
        match text.split_once(':') {
            None if text == "keep" => Ok(AgentDownArg::Keep),
            Some(("passthrough", time)) => time.parse().map(AgentDownArg::Passthrough),
            _ => Err("expected `keep`, or `passthrough:DURATION` such as passthrough:10m".into()),
        }
    }
}

impl fmt::Display for AgentDownArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentDownArg::Keep => f.write_str("keep"),
            AgentDownArg::Passthrough(time) => write!(f, "passthrough:{time}"),
        }
    }
}

impl From<AgentDownArg> for AgentDownAction {
    fn from(action: AgentDownArg) -> AgentDownAction {
        match action {
            AgentDownArg::Keep => AgentDownAction::Keep,
            AgentDownArg::Passthrough(HumanDuration(time)) => AgentDownAction::Passthrough(time),
        }
    }
}

/// Serializes an optional value by `Display` and `FromStr`, as clap parses it.
pub mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_printed() {
        for (text, millis) in [("30s", 30_000), ("250ms", 250), ("10m", 600_000), ("72h", 259_200_000)] {
            let duration: HumanDuration = text.parse().unwrap();
            assert_eq!((duration.0, duration.to_string().as_str()), (Duration::from_millis(millis), text));
        }
        assert_eq!("60s".parse::<HumanDuration>().unwrap().to_string(), "1m");
        for bad in ["", "5", "s", "0s", "-1s", "1d", "9999999999999999999h", "99999999999999999999h"] {
            assert!(bad.parse::<HumanDuration>().is_err(), "{bad}");
        }
    }

    #[test]
    fn actions_are_parsed_and_printed() {
        for text in ["keep", "passthrough:10m"] {
            assert_eq!(text.parse::<AgentDownArg>().unwrap().to_string(), text);
        }
        for bad in ["sometimes", "passthrough", "passthrough:0s", "keep:1s"] {
            assert!(bad.parse::<AgentDownArg>().is_err(), "{bad}");
        }
        assert_eq!("off".parse(), Ok(OrOff::<HumanDuration>::Off));
        let error = "127.0.0.55".parse::<OrOff<ListenAddress>>().unwrap_err();
        assert_eq!(error, "expected ADDRESS:PORT, such as 127.0.0.1:10249, or `off`");
        assert_eq!("forever".parse(), Ok(MaxAge::Forever));
    }
}
