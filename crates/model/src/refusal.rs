//! Refusals: objects, or parts of objects, that are not served, each with the reason.

use crate::name::{LOCAL_CLUSTER, Name, ServiceName};
use crate::policy::PolicyName;
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// An object, or a part of an object, that is not served. A refusal is logged once, counted in the metrics and shown by
/// `status`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Refusal {
    pub subject: RefusalSubject,
    pub reason: RefusalReason,
    /// What is wrong, and what to do about it.
    pub message: String,
}

impl Refusal {
    pub fn new(subject: impl Into<RefusalSubject>, reason: RefusalReason, message: impl Into<String>) -> Refusal {
        Refusal { subject: subject.into(), reason, message: message.into() }
    }

    /// The Node of `--node-name` does not exist.
    pub fn node_not_found(name: Name) -> Refusal {
        let message = format!(
            "there is no Node named {name}, so no endpoint counts as local and topology hints are not used: check --node-name"
        );
        let node = ObjectRef { kind: "Node", cluster: None, namespace: None, name };
        Refusal::new(node, RefusalReason::NodeNotFound, message)
    }
}

/// What a refusal is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalSubject {
    Object(ObjectRef),
    File(FileRef),
    /// A folder of manifests.
    Folder(PathBuf),
    /// A cluster as a whole, by its name in the configuration.
    Cluster(Name),
    Cgroup(PathBuf),
    /// The agent's configuration file.
    Configuration,
    /// The routing table of the host.
    Routes,
    /// The kernel table of node addresses.
    NodeTable,
}

/// One Kubernetes object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// As Kubernetes names it: `Service`, `EndpointSlice`, ...
    pub kind: &'static str,
    /// `None` means the cluster of the source that reports the refusal.
    pub cluster: Option<Name>,
    /// `None` for kinds without a namespace, and for objects that have none.
    pub namespace: Option<Name>,
    pub name: Name,
}

/// A position in a file of manifests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileRef {
    pub name: Name,
    /// Counted from 1. `None` means the whole file.
    pub document: Option<u32>,
    /// The item of a List, counted from 1. `None` means the whole document.
    pub item: Option<u32>,
}

impl RefusalSubject {
    /// The cluster that the displayed subject names. Objects of the local cluster are displayed without it.
    pub fn cluster(&self) -> Option<&str> {
        match self {
            RefusalSubject::Cluster(name) => Some(name),
            RefusalSubject::Object(object) => object.cluster.as_deref().filter(|cluster| *cluster != LOCAL_CLUSTER),
            _ => None,
        }
    }
}

impl From<ObjectRef> for RefusalSubject {
    fn from(object: ObjectRef) -> RefusalSubject {
        RefusalSubject::Object(object)
    }
}

impl From<FileRef> for RefusalSubject {
    fn from(file: FileRef) -> RefusalSubject {
        RefusalSubject::File(file)
    }
}

/// A `ServiceName` may also stand for a policy.
impl From<&ServiceName> for RefusalSubject {
    fn from(name: &ServiceName) -> RefusalSubject {
        RefusalSubject::Object(ObjectRef {
            kind: name.policy_kind().map_or("Service", |kind| kind.as_str()),
            cluster: Some(name.cluster().into()),
            namespace: Some(name.namespace().into()),
            name: name.name().into(),
        })
    }
}

impl From<&PolicyName> for RefusalSubject {
    fn from(policy: &PolicyName) -> RefusalSubject {
        RefusalSubject::Object(ObjectRef {
            kind: policy.kind.as_str(),
            cluster: Some(policy.cluster.clone()),
            namespace: Some(policy.namespace.clone()),
            name: policy.name.clone(),
        })
    }
}

impl fmt::Display for RefusalSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RefusalSubject::Object(object) => object.fmt(f),
            RefusalSubject::File(file) => file.fmt(f),
            RefusalSubject::Folder(path) => write!(f, "folder {}", path.display()),
            RefusalSubject::Cluster(name) => write!(f, "cluster {name}"),
            RefusalSubject::Cgroup(path) => write!(f, "cgroup {}", path.display()),
            RefusalSubject::Configuration => f.write_str("configuration"),
            RefusalSubject::Routes => f.write_str("routes"),
            RefusalSubject::NodeTable => f.write_str("Nodes"),
        }
    }
}

/// `Service default/web`, `Service CLUSTER:default/web` of another cluster than the local one, `Node n1`.
impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(cluster) = self.cluster.as_deref().filter(|cluster| *cluster != LOCAL_CLUSTER) {
            write!(f, "{cluster}:")?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// `file web.yaml document 2 item 7`.
impl fmt::Display for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.name)?;
        self.document.map_or(Ok(()), |document| write!(f, " document {document}"))?;
        self.item.map_or(Ok(()), |item| write!(f, " item {item}"))
    }
}

impl Serialize for RefusalSubject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+) => {
        /// Why something is refused: the label `reason` of the metrics, `reason` of the status, and (with a capital
        /// first letter) the reason of the Event on the object.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum RefusalReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl RefusalReason {
            pub const ALL: &'static [RefusalReason] = &[$(RefusalReason::$variant,)+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(RefusalReason::$variant => $text,)+
                }
            }
        }
    };
}

reasons! {
    // Objects, as they are read.

    /// `metadata.name`, `metadata.namespace` or a name in the object is not a DNS-1123 name.
    BadName = "badName",
    /// A field has another type than the API defines, or is missing.
    WrongType = "wrongType",
    /// A policy of a manifest has a field that its schema does not define.
    UnknownField = "unknownField",
    /// The Service has no ports.
    NoPorts = "noPorts",
    /// A port number, a protocol or the name of a port is invalid.
    BadPort = "badPort",
    /// All ports of the Service use SCTP, which is not redirected.
    UnsupportedProtocol = "unsupportedProtocol",
    /// A nodePort is invalid, or the type of the Service has none.
    BadNodePort = "badNodePort",
    /// `spec.clusterIP` or `spec.clusterIPs` is invalid.
    BadClusterIp = "badClusterIP",
    /// An address in `spec.externalIPs` is invalid.
    BadExternalIp = "badExternalIP",
    /// `spec.externalName` is not a DNS name.
    BadExternalName = "badExternalName",
    /// A load balancer's ingress address is invalid.
    BadLoadBalancerIp = "badLoadBalancerIP",
    /// An entry of `spec.loadBalancerSourceRanges` is invalid.
    BadSourceRange = "badSourceRange",
    /// A traffic policy is neither Cluster nor Local.
    BadPolicy = "badPolicy",
    /// The session affinity or its timeout is invalid.
    BadAffinity = "badAffinity",
    /// A manifest leaves the ClusterIP to be allocated.
    NoClusterIp = "noClusterIP",
    /// A manifest leaves a nodePort to be allocated.
    NoNodePort = "noNodePort",
    /// The address type of an EndpointSlice is not an IP family.
    BadFamily = "badFamily",
    /// A slice names no Service, or a Service that the folder does not contain.
    NoService = "noService",
    /// An endpoint's address or node name is invalid.
    BadEndpoint = "badEndpoint",
    /// An endpoint's hostname is not a DNS label.
    BadHostname = "badHostname",
    /// A subset of Endpoints has more addresses than are mirrored.
    TooManyAddresses = "tooManyAddresses",
    /// An address of a Node, a Pod or a policy is invalid.
    BadAddress = "badAddress",
    /// The value of one of Beeline's annotations is invalid.
    BadAnnotation = "badAnnotation",
    /// `spec.nodeName` of a Pod is invalid.
    BadNode = "badNode",
    /// A range of a ServiceCIDR is invalid.
    BadRange = "badRange",
    /// A slice carries the controller's label without an owner that the controller would have set.
    NotOwned = "notOwned",
    /// A slice with node addresses is not in the controller's namespace.
    WrongNamespace = "wrongNamespace",
    /// The value of one of Beeline's labels is invalid.
    BadLabel = "badLabel",
    /// Two static pods claim the same cgroup.
    SameCgroup = "sameCgroup",

    // Policies.

    /// `spec.frontend` of a policy is invalid.
    BadFrontend = "badFrontend",
    /// `spec.backend` of a policy is invalid.
    BadBackend = "badBackend",
    /// The limit of a policy is invalid.
    BadLimit = "badLimit",
    /// A label selector of a policy is invalid.
    BadSelector = "badSelector",
    /// A port of the frontend has no counterpart among the ports of the backend.
    UnpairedPort = "unpairedPort",
    /// The ports of a policy do not fit each other.
    BadPorts = "badPorts",
    /// The Service that a policy names does not exist.
    ServiceNotFound = "serviceNotFound",
    /// The Service that a policy names has no such port.
    PortNotFound = "portNotFound",
    /// A port of the Service has no counterpart in the policy.
    PortWithoutBackend = "portWithoutBackend",
    /// A selected pod has no container port of this name.
    PodWithoutPort = "podWithoutPort",
    /// The node of a selected pod has no address that can be used.
    NodeWithoutAddress = "nodeWithoutAddress",
    /// A virtual address is outside the ranges that the agent allows.
    VirtualAddressNotAllowed = "virtualAddressNotAllowed",
    /// A selected pod has no address of the family.
    NoAddress = "noAddress",
    /// A selected pod has no hostPort.
    NoHostPort = "noHostPort",
    /// A selected pod has no such port.
    NoPort = "noPort",

    // Files and folders of manifests.

    /// A file or a part of it cannot be parsed.
    Syntax = "syntax",
    /// A document is larger than the limit.
    TooLarge = "tooLarge",
    /// A file cannot be opened or read.
    Unreadable = "unreadable",
    /// A file that had objects is empty now.
    Empty = "empty",
    /// Objects of a file that cannot be read completely keep their last known state.
    Kept = "kept",
    /// Two places define the same object.
    Duplicate = "duplicate",
    /// The kind or the API version is not one that is read.
    UnknownKind = "unknownKind",
    /// A List has no items.
    NoItems = "noItems",
    /// Changes of the folder are found by polling only.
    NoInotify = "noInotify",

    // The plan.

    /// Another object holds the address or port.
    AddressConflict = "addressConflict",
    /// The address is the virtual address of a policy.
    VirtualRange = "virtualRange",
    /// The address belongs to this host.
    OwnAddress = "ownAddress",
    /// The address is a cloud's metadata address.
    MetadataAddress = "metadataAddress",
    /// The address and port are those of an API server.
    ApiServerAddress = "apiServerAddress",
    /// The address lies in a service range, and no ClusterIP of the Service has it.
    ServiceRangeAddress = "serviceRangeAddress",
    /// The address is a pod's, or lies in a pod range.
    PodAddress = "podAddress",
    /// An externalIP is outside what `--external-ips` allows.
    ExternalIpNotAllowed = "externalIPNotAllowed",
    /// A set would have more endpoints than the tables hold.
    TooManyEndpoints = "tooManyEndpoints",
    /// Endpoints cannot be reached from this host.
    Unreachable = "unreachable",
    /// The service range belongs to another cluster.
    RangeOwned = "rangeOwned",
    /// The service ranges of an earlier cluster are not known yet.
    RangeUnknown = "rangeUnknown",
    /// Two clusters use the same pod addresses.
    PodsShared = "podsShared",

    // The kernel and the host.

    /// A kernel table is full.
    TableFull = "tableFull",
    /// A kernel table could not be written.
    WriteFailed = "writeFailed",
    /// The healthCheckNodePort is in use by another process.
    HealthCheckPortTaken = "healthCheckPortTaken",
    /// The limit of open files allows no further healthCheckNodePort.
    HealthCheckPortLimit = "healthCheckPortLimit",
    /// A cgroup of the configuration does not exist.
    NoCgroup = "noCgroup",
    /// The Node object of this host does not exist.
    NodeNotFound = "nodeNotFound",
    /// A pod asks for a view that no cluster of the configuration has.
    UnknownView = "unknownView",
    /// The routing table cannot be read.
    RoutesUnknown = "routesUnknown",

    // The configuration.

    /// The configuration file cannot be used.
    BadConfiguration = "badConfiguration",
    /// The identity of the cluster cannot be stored or read.
    UnknownCluster = "unknownCluster",
    /// Another cluster than before answers under this name.
    OtherCluster = "otherCluster",
    /// Two names of the configuration lead to the same cluster.
    SameCluster = "sameCluster",
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for RefusalReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl PartialOrd for RefusalReason {
    fn partial_cmp(&self, other: &RefusalReason) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// In the order of the texts, so that inserting a variant changes no output.
impl Ord for RefusalReason {
    fn cmp(&self, other: &RefusalReason) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialEq<&str> for RefusalReason {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn reason_texts_are_unique_camel_case_words() {
        let texts: BTreeSet<&str> = RefusalReason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(texts.len(), RefusalReason::ALL.len());
        let camel_case = |text: &&str| {
            text.starts_with(|first: char| first.is_ascii_lowercase())
                && text.chars().all(|c| c.is_ascii_alphanumeric())
        };
        assert!(texts.iter().all(camel_case), "{texts:?}");
    }

    #[test]
    fn subjects_are_displayed_with_the_cluster_only_where_it_is_not_the_local_one() {
        let subject = |name: &ServiceName| RefusalSubject::from(name).to_string();
        assert_eq!(subject(&ServiceName::local("default", "web")), "Service default/web");
        assert_eq!(subject(&ServiceName::new("far", "default", "web")), "Service far:default/web");
        let file = FileRef { name: "a.yaml".into(), document: Some(2), item: None };
        assert_eq!(RefusalSubject::from(file).to_string(), "file a.yaml document 2");
    }
}
