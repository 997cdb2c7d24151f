//! The CustomResourceDefinitions in `deploy/` are generated from the types. `BLESS=1` writes them again.

use beeline_cluster::policy::{definition_yaml, definitions};
use std::fs;
use std::path::Path;

const HEAD: &str = "# Generated from crates/cluster/src/policy by `BLESS=1 make test-quick`: change the types there.\n";

#[test]
fn the_definitions_match_the_types() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart/definitions"));
    for definition in definitions() {
        let file = folder.join(format!("{}.yaml", definition["spec"]["names"]["plural"].as_str().unwrap()));
        let text = format!("{HEAD}{}", definition_yaml(&definition).unwrap());
        if std::env::var_os("BLESS").is_some() {
            fs::create_dir_all(folder).unwrap();
            fs::write(&file, &text).unwrap();
        }
        let written = fs::read_to_string(&file).unwrap_or_default();
        assert!(text == written, "{} does not match the types: run BLESS=1 make test-quick", file.display());
        let read: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, definition, "the YAML is equivalent to the definition");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2, "the folder contains no other files");
}
