pub mod answer;
pub mod watched;
pub mod world;
