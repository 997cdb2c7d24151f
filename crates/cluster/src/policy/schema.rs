//! The schemas of lists and of their texts, which cannot be expressed by attributes.

use super::frontend::FrontendPort;
use super::{MAX_ADDRESSES, MAX_LABELS, MAX_PORTS, MAX_VALUES, rule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The ports of a backend. Two dialled ports may lead to the same port.
pub(super) fn ports<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_PORTS,
        "items": T::json_schema(generator),
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": [rule::all_named(), rule::unique_names()],
    })
}

/// The ports of a frontend. Each pair of port and protocol may occur only once.
pub(super) fn dialled_ports(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_PORTS,
        "items": FrontendPort::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["port", "protocol"],
        "x-kubernetes-validations": [rule::all_named(), rule::unique_names()],
    })
}

/// A pattern would refuse the text "8080" with a regular expression as the message.
pub(super) fn number_or_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 1,
        "maximum": 65535,
        "maxLength": 15,
        "x-kubernetes-validations": [rule::port_is_no_quoted_number(), rule::container_port_name()],
    })
}

pub(super) fn addresses(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_ADDRESSES,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "maxLength": 39,
            "x-kubernetes-validations": [rule::address(), rule::reachable(), rule::no_metadata()],
        },
    })
}

pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_LABELS,
        "additionalProperties": { "type": "string", "maxLength": 63, "x-kubernetes-validations": [rule::label_value()] },
        "x-kubernetes-validations": [rule::label_keys()],
    })
}

pub(super) fn label_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAX_VALUES,
        "x-kubernetes-list-type": "set",
        "items": { "type": "string", "maxLength": 63, "x-kubernetes-validations": [rule::label_value()] },
    })
}

/// The API's own limit for messages: a status is sent to every client that watches the object.
const MAX_MESSAGE: usize = 32_768;

pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut condition = Condition::json_schema(generator);
    if let Some(message) = condition.pointer_mut("/properties/message") {
        message["maxLength"] = MAX_MESSAGE.into();
    }
    json_schema!({
        "type": "array",
        "maxItems": 8,
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}
